"""What a user wants, as a state that evolves: function, arguments, what has been revealed, and the three ways it changes.

I_t = (f_t, C_t, C_rev,t, y_t) of "LLMs Get Lost in Evolving User Intent" (section 3): the function f_t is what is asked, C_t are
the arguments with their active values, C_rev,t those the agent has been told. A *reveal* makes C_rev grow, a *revision* changes
the value of a revealed argument, a *switch* exchanges the function while shared arguments stay. Whatever happened on the way,
the last turn's state is the source problem, so that the source's own verifier grades it.

Everything here is domain-free: arguments and functions are texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SOURCE = "source"
"""Key of the source problem's own function."""


class InvalidTransition(ValueError):
    """A transition that the state does not allow; the text says which rule it breaks."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Another value of an argument: the whole argument with one value exchanged. `old` and `new` are that value as written."""

    text: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One piece of what the function rests on. `alternatives` are values it may be given before it is corrected.

    `informative` is False for scene-setting that carries no value.
    """

    key: str
    text: str
    alternatives: tuple[Counterfactual, ...] = ()
    informative: bool = True

    def value(self, version: int) -> str:
        """Return the text of a version: 0 is the source's, k the k-th alternative."""
        return self.text if version == 0 else self.alternatives[version - 1].text


@dataclass(frozen=True, slots=True)
class Function:
    """What is asked. `needs` are keys of the source arguments it rests on, `own` arguments that it alone brings along."""

    key: str
    text: str
    needs: frozenset[str]
    own: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Ingredients:
    """All that a conversation can be made of: the source function, its arguments in source order, and possible predecessors.

    `predecessors` stand farthest from the source first, the order in which a conversation asks them.

    Raises:
        ValueError: when keys repeat, a function needs an unknown argument, or there is no argument.
    """

    source: Function
    arguments: tuple[Argument, ...]
    predecessors: tuple[Function, ...] = ()

    def __post_init__(self) -> None:
        keys = [argument.key for argument in self.arguments]
        keys += [argument.key for function in self.predecessors for argument in function.own]
        functions = [function.key for function in self.functions]
        if len(set(keys)) < len(keys) or len(set(functions)) < len(functions):
            raise ValueError(f"ingredients: keys repeat in {keys + functions}")
        if not self.arguments or self.source.key != SOURCE:
            raise ValueError("ingredients: there must be an argument, and the source function has the key 'source'")
        known = {argument.key for argument in self.arguments}
        for function in self.functions:
            if not function.needs <= known:
                raise ValueError(f"ingredients: function {function.key} needs unknown arguments {sorted(function.needs - known)}")

    @property
    def functions(self) -> tuple[Function, ...]:
        """Predecessors and the source function, in asking order."""
        return (*self.predecessors, self.source)

    def function(self, key: str) -> Function:
        """Return a function by key."""
        return next(function for function in self.functions if function.key == key)

    def argument(self, key: str) -> Argument:
        """Return an argument by key, whether it is the source's or a predecessor's own."""
        everything = [*self.arguments, *(argument for function in self.predecessors for argument in function.own)]
        return next(argument for argument in everything if argument.key == key)


@dataclass(frozen=True, slots=True)
class Reveal:
    """The user tells an argument, at a version of its value (0 is the source's)."""

    argument: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Revision:
    """The user corrects an argument that was told before."""

    argument: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Switch:
    """The user asks something else from now on. The opening turn's first question is a switch from nothing."""

    function: str


Transition = Switch | Revision | Reveal


@dataclass(frozen=True, slots=True)
class Turn:
    """One user turn: its transitions, in the order they are said (switch, then revisions, then reveals).

    A turn without transitions repeats the turn before it; only the repeat control has those.
    """

    transitions: tuple[Transition, ...]

    @property
    def switch(self) -> Switch | None:
        return next((change for change in self.transitions if isinstance(change, Switch)), None)

    @property
    def revisions(self) -> tuple[Revision, ...]:
        return tuple(change for change in self.transitions if isinstance(change, Revision))

    @property
    def reveals(self) -> tuple[Reveal, ...]:
        return tuple(change for change in self.transitions if isinstance(change, Reveal))


Script = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class IntentState:
    """The intent after some turns: the active function and the version of every argument told so far, in the order told."""

    function: str | None = None
    versions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, turn: Turn, ingredients: Ingredients) -> IntentState:
        """Return the state after one more turn.

        Raises:
            InvalidTransition: a second reveal of one argument, a revision of something never told or to the value it has, a
                switch to the active function, a reveal that the active function does not allow, or an unknown version.
        """
        function, versions = self.function, dict(self.versions)
        if not turn.transitions and function is None:
            raise InvalidTransition("the first turn says nothing")
        for change in turn.transitions:
            if isinstance(change, Switch):
                if change.function == function:
                    raise InvalidTransition(f"switch to {change.function}, which is the active function already")
                function = change.function
                continue
            if function is None:
                raise InvalidTransition("the first turn must ask something before anything else")
            argument = ingredients.argument(change.argument)
            if not 0 <= change.version <= len(argument.alternatives):
                raise InvalidTransition(f"argument {change.argument} has no version {change.version}")
            if isinstance(change, Reveal):
                if change.argument in versions:
                    raise InvalidTransition(f"argument {change.argument} is revealed twice")
                if not _may_be_told(change.argument, function, ingredients):
                    raise InvalidTransition(f"argument {change.argument} belongs to another function than {function}")
            elif versions.get(change.argument, change.version) == change.version:
                told = "has that value already" if change.argument in versions else "was never told"
                raise InvalidTransition(f"revision of argument {change.argument}, which {told}")
            versions[change.argument] = change.version
        return IntentState(function, MappingProxyType(versions))

    def knows(self, function: Function) -> bool:
        """True where everything that a function rests on has been told."""
        return function.needs <= self.versions.keys() and all(argument.key in self.versions for argument in function.own)


def _may_be_told(key: str, function: str, ingredients: Ingredients) -> bool:
    own = {argument.key for argument in ingredients.function(function).own}
    return key in own or any(argument.key == key for argument in ingredients.arguments)


def states(script: Script, ingredients: Ingredients) -> tuple[IntentState, ...]:
    """Return the state after each turn.

    Raises:
        InvalidTransition: as `IntentState.after` does.
    """
    result = []
    state = IntentState()
    for turn in script:
        state = state.after(turn, ingredients)
        result.append(state)
    return tuple(result)
