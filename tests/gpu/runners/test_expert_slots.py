"""Expert slots evict the least recently used expert, and never one that the round needs."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.runners.expert_slots import ExpertSlots, ResidentExperts


def test_the_least_recently_used_expert_is_evicted() -> None:
    slots = ExpertSlots(3)
    assert slots.rounds([4, 7]) == [ResidentExperts({4: 0, 7: 1}, (4, 7))]
    assert slots.rounds([7]) == [ResidentExperts({7: 1}, ())]
    assert slots.rounds([2]) == [ResidentExperts({2: 2}, (2,))]
    assert slots.rounds([9]) == [ResidentExperts({9: 0}, (9,))], "4 was used before 7"
    assert slots.rounds([4, 7]) == [ResidentExperts({7: 1, 4: 2}, (4,))], "7 stays, 2 goes"


def test_more_experts_than_slots_come_in_rounds_resident_ones_first() -> None:
    slots = ExpertSlots(2)
    slots.rounds([5])
    first, second, third = slots.rounds([1, 3, 5, 8, 9])
    assert first == ResidentExperts({5: 0, 1: 1}, (1,))
    assert second == ResidentExperts({3: 0, 8: 1}, (3, 8))
    assert third == ResidentExperts({9: 0}, (9,))
    assert slots.rounds([8, 9]) == [ResidentExperts({8: 1, 9: 0}, ())], (
        "as the last round left them"
    )


def test_one_slot_takes_experts_one_after_the_other() -> None:
    slots = ExpertSlots(1)
    assert slots.rounds([6, 2]) == [ResidentExperts({6: 0}, (6,)), ResidentExperts({2: 0}, (2,))]
    assert slots.rounds([2]) == [ResidentExperts({2: 0}, ())]
    with pytest.raises(ValueError, match="one slot for experts or more"):
        ExpertSlots(0)


@pytest.mark.parametrize("n_slots", [1, 2, 5, 11, 12])
def test_every_expert_is_where_a_round_says(n_slots: int) -> None:
    """Compare with the contents of the slots, followed load by load."""
    rng, slots = np.random.default_rng(n_slots), ExpertSlots(n_slots)
    lies = [-1] * n_slots
    for _ in range(300):
        wanted = rng.choice(12, size=rng.integers(1, 9), replace=False).tolist()
        rounds = slots.rounds(wanted)
        assert sorted(expert for part in rounds for expert in part.places) == sorted(wanted)
        assert len(rounds) == -(-len(wanted) // n_slots)
        for part in rounds:
            for expert in part.loads:
                assert expert not in lies
                lies[part.places[expert]] = expert
            assert all(lies[slot] == expert for expert, slot in part.places.items())
