from hypothesis import given
from hypothesis import strategies as st

from simulators.seeds import derive_seed

PARTS = st.lists(st.integers() | st.text(st.characters(exclude_characters="\x1f", exclude_categories=("Cs",))), max_size=5)


@given(parts=PARTS)
def test_seeds_are_63_bit_numbers_that_every_backend_takes(parts: list[str | int]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63


@given(first=PARTS, second=PARTS)
def test_different_draws_have_different_seeds(first: list[str | int], second: list[str | int]) -> None:
    same = "\x1f".join(map(str, first)) == "\x1f".join(map(str, second))
    assert (derive_seed(*first) == derive_seed(*second)) is same


def test_seeds_never_change_or_journals_would_not_be_found_again() -> None:
    assert derive_seed(0, "task", 1, "user", 0) == 4495499601582655822
