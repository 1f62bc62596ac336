"""A small lexicon of English verbs and function words: enough to turn a statement about a number into a question."""

from __future__ import annotations

from typing import Literal

VerbForm = Literal["base", "s", "past", "participle", "ing"]

_IRREGULAR = """
be was been; become became become; begin began begun; bet bet bet; break broke broken; bring brought brought; build
built built; burn burnt burnt; buy bought bought; catch caught caught; choose chose chosen; come came come; cost cost
cost; cut cut cut; do did done; draw drew drawn; drink drank drunk; drive drove driven; earn earned earned; eat ate
eaten; fall fell fallen; feed fed fed; find found found; fly flew flown; get got gotten; give gave given; go went
gone; grow grew grown; have had had; hear heard heard; hit hit hit; hold held held; keep kept kept; know knew known;
lay laid laid; lead led led; leave left left; lend lent lent; lose lost lost; make made made; mean meant meant; meet
met met; owe owed owed; pay paid paid; put put put; read read read; ride rode ridden; rise rose risen; run ran run;
see saw seen; sell sold sold; send sent sent; set set set; sew sewed sewn; shoot shot shot; sing sang sung; sleep
slept slept; spend spent spent; split split split; spread spread spread; stand stood stood; steal stole stolen; swim
swam swum; take took taken; teach taught taught; tell told told; think thought thought; throw threw thrown; wear wore
worn; win won won; withdraw withdrew withdrawn; write wrote written; bike biked biked
"""
_REGULAR = """
accommodate accumulate acquire add allocate answer arrange ask assemble assign average bake bark blow borrow brew burn
buy carry charge check chop clean climb collect commute complete consume contain contribute cook count cover create
crochet cycle dance decorate deliver deposit design discover display distribute dive divide donate download drain drop
dry dust edit end enter erase exchange exercise expect explore fill finish fit fold gain gather generate grade guess
hand harvest hike hire hunt include increase install invest invite iron jog jump knit last lift live load lose mail
manage melt miss mop move mow need offer open order own owe pack paint participate pass perform pick pitch place plan
plant play point pour practice pray prepare print process produce provide pull pump purchase push raise rake reach
receive record recycle remain remove rent repair replace require reserve return roast save scoop score serve share
shelve shoot shovel shuck sign skip smoke solve sort stack start stay step stop store stretch stuff study supply swing
talk total trade train transfer transport travel treat trim try turn type use vacuum visit volunteer wait walk want
wash waste watch water weigh work wrap yell yield bounce breed carve cough drip flip float host juggle land mix party
peel plow polish post quilt sneeze sow squeeze swap tutor unload upload pedal lease list loan match note pledge press
promise recruit refill release sample scan seat contact chase hike mature block press mend recover patrol perform
compose lack consume cause rain attend decide earn guess ship raze amount total slice spot stamp stitch sweep tag text
tie tile toss track tweet wear weed weld wrestle
"""


_DOUBLED = frozenset(
    "chop drop hop jog mop plan shop skip step stop strip swap tag trim wrap scan flip drip transfer knit".split()
)


def _past_of(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    if verb in _DOUBLED:
        return verb + verb[-1] + "ed"
    return verb + "ed"


def _ing_of(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and verb not in {"be", "see"}:
        return verb[:-1] + "ing"
    if verb in _DOUBLED or verb in {"cut", "get", "hit", "put", "run", "set", "sit", "split", "swim", "win", "bet"}:
        return verb + verb[-1] + "ing"
    return verb + "ing"


def _s_of(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def _lexicon() -> dict[str, tuple[tuple[str, VerbForm], ...]]:
    forms: dict[str, list[tuple[str, VerbForm]]] = {}

    def add(written: str, lemma: str, form: VerbForm) -> None:
        entry = forms.setdefault(written, [])
        if (lemma, form) not in entry:
            entry.append((lemma, form))

    irregular = [entry.split() for entry in _IRREGULAR.replace("\n", " ").split(";")]
    for lemma, past, participle in irregular:
        if lemma != "be":
            add(past, lemma, "past")
            add(participle, lemma, "participle")
            if lemma == "get":
                add("got", lemma, "participle")
    for lemma in [entry[0] for entry in irregular if entry[0] != "be"] + _REGULAR.split():
        add(lemma, lemma, "base")
        add(_s_of(lemma), lemma, "s")
        add(_ing_of(lemma), lemma, "ing")
        if lemma not in {entry[0] for entry in irregular} or lemma in {"burn", "sew", "earn"}:
            add(_past_of(lemma), lemma, "past")
            add(_past_of(lemma), lemma, "participle")
    return {written: tuple(entry) for written, entry in forms.items()}


VERBS: dict[str, tuple[tuple[str, VerbForm], ...]] = _lexicon()
"""Written form -> its (lemma, form) readings."""

BE = frozenset({"is", "are", "was", "were"})
MODALS = frozenset({"will", "can", "would", "could", "should", "must", "might", "may"})
ADVERBS = frozenset(
    "also then still now already only therefore thus actually originally initially currently usually eventually "
    "finally first just later normally typically collectively together altogether".split()
)
KEPT_ADVERBS = frozenset({"still", "now", "already", "currently", "originally", "initially", "usually", "together"})
"""Adverbs that carry meaning into the question; the others only connect a solution's lines."""

PARTICLES = frozenset("up out away off back down over in on for with at by through around him her them it home".split())
PRONOUNS = frozenset({"he", "she", "they", "it", "we", "i", "you"})
PEOPLE_PRONOUNS = frozenset({"he", "she", "his", "her", "him", "hers"})

DETERMINERS = frozenset("the a an his her their its my our your this these those each every all both one any some most".split())
UNIT_ENDS = frozenset(
    "in on at for from to with per after before by during over under than into onto around through without within "
    "until since because while when if who that which where whose a an the each every altogether together total left "
    "remaining away long wide tall high deep old early late now already daily weekly monthly yearly annually so then "
    "his her their its my our worth out off up down back is are was were can will would could has have had do does "
    "did this these those today yesterday tomorrow tonight overall combined apiece according as and or but it he she "
    "they there spent saved earned sold bought used only just still also last next not against across between among "
    "throughout upon instead initially originally".split()
)
"""Words that end the noun phrase after a number."""

IRREGULAR_PLURALS = frozenset(
    "people children men women feet teeth mice geese sheep fish deer dice oxen salmon trout squid shrimp".split()
)
MEASURES = frozenset(
    "seconds minutes hours days weeks months years miles kilometers meters feet yards inches centimeters pounds "
    "ounces grams kilograms liters gallons cups pints quarts milliliters cents dollars calories degrees points square "
    "ml lbs kg cm km mg mm oz".split()
)
FAMILIAR = frozenset(
    "total number amount cost price money time value sum average difference profit revenue income earnings savings "
    "expense expenses bill change distance speed length width height area perimeter volume weight age share combined "
    "rest remaining other people person dollars cents minutes hours days weeks months years seconds more fewer less "
    "additional new old first last original initial final whole entire each every full daily weekly monthly yearly "
    "annual long much many items things together pay paid spend cost costs left there them they their his he her she "
    "the and with from for that how what need needs second third fourth fifth monday tuesday wednesday thursday "
    "friday saturday sunday january february march april june july august september october november december today "
    "yesterday between without throughout some needed worth single extra sale sales quantity payment salary hourly "
    "children students pieces collected purchased available half twice same alone birthday beginning sold spent made "
    "received gathered will would could should must does have been were work after before during into over only both "
    "another still currently already originally initially usually altogether able going used make when away round "
    "family hour minute month week day year square feet miles normally distance profits working itself himself "
    "herself themselves started finished ended ends different kinds types".split()
)
"""Words a question may use although the problem does not."""


PLURAL_QUANTITIES = frozenset("earnings savings expenses sales costs profits winnings taxes proceeds wages".split())
QUANTITIES = PLURAL_QUANTITIES | frozenset(
    "number total amount cost price sum average difference profit revenue income value distance speed length width height area "
    "perimeter volume weight age time share bill discount salary pay tip tax fee rent balance rate rest remainder money score "
    "budget capacity charge payment commission interest half twice population".split()
)
"""Nouns that name what can be asked with "What is the ...?"."""

CALENDAR = frozenset(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August September "
    "October November December Christmas Halloween Easter Mr Mrs Ms Dr If When After Before During For In On At By Since While "
    "Because However With From Today Yesterday Tomorrow Then So How What Who Which Where His Her Their".split()
)
"""Capitalised words that are nobody's name."""

LIGHT = frozenset(
    "how many much what is are was were will would can be the a an of do does did in total all altogether now have has had to "
    "for at on and left remain remaining still currently".split()
)
"""Words that do not tell two questions apart."""

EXTENT = frozenset("during combined whole entire both over altogether everything far grand all".split())
TIMES = frozenset("these those after before day week month year hour end beginning first last today three two four".split())
"""Stems that say how much of it, and when, rather than what."""


def stem(word: str) -> str:
    """Return a crude stem, so that "cookies" meets "cookie" and "earned" meets "earns"."""
    word = word.lower().removesuffix("'s")
    for form, _ in VERBS.get(word, ()):
        return form
    for suffix, put in (
        ("ies", "y"),
        ("sses", "ss"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("xes", "x"),
        ("ing", ""),
        ("ed", ""),
        ("s", ""),
    ):
        if word.endswith(suffix) and len(word) - len(suffix) >= 2:
            return word[: len(word) - len(suffix)] + put
    return word


def is_plural(noun: str) -> bool:
    """True for a noun that a count above one goes with."""
    noun = noun.lower()
    return noun in IRREGULAR_PLURALS or noun in MEASURES or (noun.endswith("s") and not noun.endswith(("ss", "us", "is", "'s")))
