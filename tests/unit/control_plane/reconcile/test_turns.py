"""Who takes over new defaults of an installation, and who waits."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.objects.revisions import RevisionRecord
from control_plane.reconcile.turns import ASKING, Line, Standing, State, awaited_until_s, look_again_s, state_of
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import Pool
from tandem.spec.revision import revision_of
from tandem.spec.rollout import Rollout
from tandem.spec.service import Spec
from tandem.spec.status import Condition, ModelServiceStatus, RolloutStatus

OWN = Spec(engine=EngineSpec(type="simulated"), pools=(Pool(name="both", role="unified"),))
NEW = "abc"
NOW = 1_800_000_000.0


times = st.sampled_from([NOW - 1.0, NOW + 1.0])


def line_of(*standings: Standing) -> Line:
    line = Line()
    for each in standings:
        line.put(each)
    return line


def with_image(image: str) -> Spec:
    return msgspec.structs.replace(OWN, pools=(msgspec.structs.replace(OWN.pools[0], image=image),))


def state(*more: Condition, own: Spec = OWN, reconciling: bool = True, **status: object) -> State:
    """Of a service that runs with image `one`."""
    old = with_image("one")
    current = revision_of(old)
    record = RevisionRecord(current, 1, {}, msgspec.json.decode(msgspec.json.encode(old)))
    condition = Condition("Reconciling", "True" if reconciling else "False", "x", "", "2026-01-01T00:00:00Z")
    told = ModelServiceStatus(current_revision=current, conditions=(condition, *more), **status)  # type: ignore[arg-type]
    return state_of(told, own, NEW, {current: record})


def test_a_service_waits_where_nothing_but_defaults_has_changed() -> None:
    assert state() == "waits"
    assert state(own=with_image("mine")) == "", "its user gave it another image"
    assert state(own=msgspec.structs.replace(OWN, redis="redis://other")) == ""
    assert state_of(ModelServiceStatus(), OWN, NEW, {}) == "", "it has never run"


def test_a_service_that_becomes_a_tenants_takes_over_a_default() -> None:
    old = with_image("one")
    for tenant in (False, True):
        current = revision_of(old, tenant=tenant)
        record = RevisionRecord(current, 1, {}, msgspec.json.decode(msgspec.json.encode(old)))
        told = ModelServiceStatus(current_revision=current)
        assert state_of(told, OWN, revision_of(old, tenant=not tenant), {current: record}) == "waits"


def test_a_service_waits_for_other_defaults_of_its_pods() -> None:
    defaults = {"runtimeClassName": "nvidia"}
    current = revision_of(OWN, defaults)
    record = RevisionRecord(current, 1, {}, msgspec.json.decode(msgspec.json.encode(OWN)), defaults)
    told = ModelServiceStatus(current_revision=current)
    assert state_of(told, OWN, revision_of(OWN), {current: record}) == "waits"
    assert state_of(told, OWN, revision_of(OWN, {"runtimeClassName": "kata"}), {current: record}) == "waits"
    edited = with_image("mine")
    assert state_of(told, edited, revision_of(edited), {current: record}) == "", "its user edited it meanwhile"


def test_a_service_that_rests_or_has_failed_keeps_no_place() -> None:
    assert state(update_revision=NEW) == "moves"
    assert state(update_revision=NEW, reconciling=False) == ""
    assert state(update_revision=NEW, rollout=RolloutStatus(failed_revision=NEW, failure_kind="deadline")) == ""
    assert state(rollout=RolloutStatus(failed_revision="other", failure_kind="deadline")) == "waits"


def test_a_service_on_its_way_goes_on_to_newer_defaults() -> None:
    assert state(update_revision="older") == "moves"
    assert state(update_revision="older", reconciling=False) == "waits", "it rests part of the way"
    gone_back = RolloutStatus(failed_revision="older", failure_kind="deadline")
    assert state(update_revision="older", rollout=gone_back) == "waits"


def test_a_service_that_rests_part_of_the_way_waits_with_what_it_tries_and_is_counted_when_it_goes_on() -> None:
    tried = msgspec.structs.replace(OWN, engine=EngineSpec(type="simulated", block_tokens=32))
    own, old = tried, with_image("one")
    tried = msgspec.structs.replace(tried, pools=old.pools)
    records = {
        name: RevisionRecord(name, 1, {}, msgspec.json.decode(msgspec.json.encode(spec)))
        for name, spec in ((revision_of(old), old), (revision_of(tried), tried))
    }

    def stands(update: str, reconciling: str, **more: object) -> State:
        condition = Condition("Reconciling", reconciling, "x", "", "2026-01-01T00:00:00Z")
        told = ModelServiceStatus(
            current_revision=revision_of(old),
            update_revision=update,
            conditions=(condition,),
            **more,  # type: ignore[arg-type]
        )
        return state_of(told, own, NEW, records)

    assert stands(revision_of(tried), "False") == "waits"
    assert stands(NEW, "True") == "moves"
    assert stands(NEW, "False") == "", "it rests again"
    assert stands(revision_of(tried), "True") == "waits", "its user's change is on its way, or one of its pods died"
    failed = RolloutStatus(failed_revision=revision_of(tried), failure_kind="deadline")
    assert stands(revision_of(tried), "False", rollout=failed) == ""
    assert stands(NEW, "True", rollout=RolloutStatus(failed_revision=NEW, failure_kind="deadline")) == ""


@pytest.mark.parametrize(
    ("reason", "update", "stands"),
    [
        ("NameConflict", "", "blocked"),
        ("DoesNotFit", "", "blocked"),
        # Late with its pods: that keeps it from nothing.
        ("ProgressDeadlineExceeded", "", "waits"),
    ],
)
def test_a_service_that_cannot_begin_is_not_in_the_line(reason: str, update: str, stands: State) -> None:
    stalled = Condition("Stalled", "True", reason, "", "2026-01-01T00:00:00Z")
    assert state(stalled, update_revision=update) == stands


@pytest.mark.parametrize(
    ("states", "at_once", "turns"),
    [
        (("waits", "waits", "waits"), 2, (0, 0, 1)),
        (("moves", "waits", "waits"), 2, (0, 0, 1)),
        (("waits", "moves", "moves"), 2, (1, 0, 0)),
        (("waits", "", "waits"), 1, (0, 0, 1)),
        # It goes in its turn once it can, and holds up nobody until then.
        (("blocked", "waits", "waits"), 1, (0, 0, 1)),
        (("waits", "blocked", "waits"), 1, (0, 1, 1)),
        # The bound was lowered meanwhile.
        (("moves", "moves", "waits"), 1, (0, 0, 1)),
        (("waits", "waits", "waits"), 0, (0, 0, 0)),
    ],
)
def test_the_oldest_go_first(states: tuple[State, ...], at_once: int, turns: tuple[int, ...]) -> None:
    standings = [Standing(f"2026-01-0{number + 1}", f"x/s{-number}", each) for number, each in enumerate(states)]
    line = line_of(*reversed(standings))
    assert tuple(line.turns_until(each.service, at_once, NOW) for each in standings) == turns


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.one_of(
                st.none(),
                st.tuples(st.sampled_from(["1", "2"]), st.sampled_from(["", "waits", "moves", "blocked"]), times),
            ),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_a_line_that_is_kept_up_is_one_that_is_made_anew(changes: list[Any], at_once: int) -> None:
    line, standings = Line(), dict[str, Standing]()
    for number, drawn in changes:
        service = f"x/s{number}"
        if drawn is None:
            standings.pop(service, None)
            line.remove(service)
        else:
            standings[service] = Standing(drawn[0], service, drawn[1], drawn[2])
            line.put(standings[service])
        for each in (*standings, "x/none"):
            assert line.turns_until(each, at_once, NOW) == in_order(each, standings.values(), at_once)


def in_order(service: str, standings: Iterable[Standing], at_once: int) -> int:
    """The same by looking at all of them."""
    line = sorted(standings, key=lambda each: each.place)
    if at_once == 0 or not any(each.service == service and each.state in ASKING for each in line):
        return 0
    waiting = [each.service for each in line if each.state == "waits" or each.service == service]
    free = at_once - sum(each.state == "moves" and each.until_s > NOW for each in line)
    return max(0, waiting.index(service) - max(0, free) + 1)


def test_a_rollout_that_does_not_come_nearer_is_not_waited_for_for_ever() -> None:
    told = ModelServiceStatus(rollout=RolloutStatus(aim="x", since=NOW))
    until = awaited_until_s(told, OWN)
    assert until == NOW + 2400.0, "more than a comparison takes"
    patient = msgspec.structs.replace(OWN, rollout=Rollout(progress_deadline_seconds=7200))
    assert awaited_until_s(told, patient) == NOW + 7200.0
    line = line_of(Standing("1", "x/first", "moves", until), Standing("2", "x/next", "waits"))
    assert line.turns_until("x/next", 1, until - 1.0) == 1
    assert line.turns_until("x/next", 1, until) == 0


def test_a_long_line_is_looked_at_rarely() -> None:
    """A thousand services in line, four at once: a few looks a second together."""
    assert look_again_s(1, 4) == 5.0
    assert look_again_s(10_000, 4) == 300.0
    assert sum(1 / look_again_s(turns, 4) for turns in range(1, 1000)) < 10.0
