"""Small tasks for the tests: exact GSM8K-like problems, an agentic search task, a software task."""

from __future__ import annotations

from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.gsm8k.builder import convert_record

BAKERY = {
    "id": "bakery",
    "question": (
        "Nora runs a bakery. She bakes 34 trays of rolls every morning. Each tray holds 18 rolls. Each roll brings in $6. "
        "Flour and butter cost her $95. How much profit does Nora make every morning?"
    ),
    "answer": (
        "Nora bakes 34*18 = <<34*18=612>>612 rolls every morning.\n"
        "Nora earns a total of 612*6 = $<<612*6=3672>>3672 on the rolls.\n"
        "Her profit is 3672-95 = $<<3672-95=3577>>3577.\n"
        "#### 3577"
    ),
}
ORCHARD = {
    "id": "orchard",
    "question": (
        "Omar owns an orchard. He planted 21 rows of pear trees. There are 14 trees in every row. A storm broke 37 of the trees. "
        "Each tree that is left gives 25 kilograms of pears. How many kilograms of pears does Omar harvest?"
    ),
    "answer": (
        "Omar planted 21*14 = <<21*14=294>>294 trees.\n"
        "After the storm, Omar has 294-37 = <<294-37=257>>257 trees left.\n"
        "Omar harvests 257*25 = <<257*25=6425>>6425 kilograms of pears.\n"
        "#### 6425"
    ),
}
LIBRARY = {
    "id": "library",
    "question": (
        "A library has 48 shelves. Every shelf holds 33 books. The library lends out 459 books. It buys 76 new books. "
        "How many books stand in the library?"
    ),
    "answer": (
        "The shelves hold a total of 48*33 = <<48*33=1584>>1584 books.\n"
        "After lending, there are 1584-459 = <<1584-459=1125>>1125 books left in the library.\n"
        "Now 1125+76 = <<1125+76=1201>>1201 books stand in the library.\n"
        "#### 1201"
    ),
}
PROBLEMS = (BAKERY, ORCHARD, LIBRARY)


def conversions() -> list[Conversion]:
    """Return the conversions of the small problems; all of them are exact."""
    return [convert_record(problem, "unnamed", seed=0) for problem in PROBLEMS]


VILLAGE = {
    "id": "village",
    "text": "Which village has a mill built in 1742, lies on the river Ard and holds a cheese fair in autumn?",
    "function": "Which village am I thinking of?",
    "arguments": [
        {"text": "It has a mill built in {}.", "values": ["1742", "1745"]},
        {"text": "It lies on the river {}.", "values": ["Ard", "Lune"]},
        {"text": "It holds a cheese fair in {}.", "values": ["autumn", "spring"]},
    ],
    "predecessors": [
        {
            "function": "Which river has the most mills?",
            "needs": [],
            "own": ["I only mean mills that still stand."],
            "reference": "Lune",
        },
        {"function": "Who built the mill?", "needs": [1], "reference": "Tomas Grell"},
    ],
    "reference": "Hollin",
}

RETRY = {
    "id": "retry",
    "text": "Write retry_delays(count): the delays double, start at 3 and never exceed 40.",
    "function": "Please write retry_delays(count), which returns the list of waiting times.",
    "arguments": [
        "Every waiting time is twice the one before.",
        {"text": "The first waiting time is {} seconds.", "values": ["3", "5"]},
        {"text": "No waiting time may exceed {} seconds.", "values": ["40", "60"]},
    ],
    "predecessors": [
        {
            "function": "Please write retry_delays(count) so that it returns the first waiting time, count times over.",
            "needs": [2],
            "reference": "def check(candidate):\n    assert candidate(2) == [{a2}, {a2}]\n",
        }
    ],
    "reference": "def check(candidate):\n    assert candidate(6) == [min({a2} * 2 ** k, {a3}) for k in range(6)]\n",
    "details": {
        "entry_point": "retry_delays",
        "files": {"delays.py": "def retry_delays(count):\n    return []\n", "README.md": "Delays."},
    },
}
