"""The cells of the goodput bench: a kind of traffic, so many workers, a share of their capacity, a bound on TPOT."""

from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.fleet.contenders import AUTO
from benchmarks.fleet.fleet import roles
from benchmarks.fleet.peers.catalogue import CURRENT, current
from benchmarks.fleet.scenarios import sessions
from benchmarks.fleet.scenarios.generated import TRAFFIC
from tandem.core.errors import TandemError

TRAFFICS: Final = (*(each.name for each in TRAFFIC), sessions.NAME)
CLOSED: Final = (sessions.NAME,)
"""Closed loops among them: how much is asked depends on how fast it is answered."""
SHIFTING: Final = tuple(each.name for each in TRAFFIC if each.apart)
"""Traffic whose phases have a kind of requests each."""
STATIONARY: Final = (*(each.name for each in TRAFFIC if not each.phase_s), sessions.NAME)
"""Traffic without phases."""
SIZES: Final = (8, 16)
LOADS: Final = (0.5, 0.8, 0.95, 1.1)
TPOTS_MS: Final = (25, 50)
TTFT_S: Final = 2.0
SHARES: Final = (0.0, 0.25, 0.5, 0.62, 0.75, 0.87)
"""Of the workers, those that take prompts for others."""
PEERS: Final = tuple(name for name in CURRENT if name != "llm-d precise tiers")
"""Every peer as its project configures it today; without the one that differs by what lies on tiers, of which these
workers have none."""
WARM_UP_S: Final = 30.0
MEASURED_S: Final = 90.0
REQUESTS_MIN: Final = 1_500
SURGE_S: Final = 60.0
CALM: Final = 0.8
"""The load before and after an overload, as a share of the capacity."""


@dataclass(frozen=True)
class Cell:
    """`load` is a share of the capacity; above 1 it is that of a surge, the load around it being `CALM`."""

    traffic: str
    workers: int
    load: float
    tpot_ms: int

    @property
    def name(self) -> str:
        return f"{self.traffic}, {self.workers} workers, {self.load:.0%}, TPOT {self.tpot_ms} ms"


@dataclass(frozen=True)
class Run:
    """One simulation: all that decides its outcome but the code. `scale` is its load in units of what
    `benchmarks.goodput_runs.unit_rate` guesses that the fleet can carry, `surge` by how much more there is in an
    overload (1: none), `itl_ms` the ITL target of its workers, `length` the share of the full length it has."""

    traffic: str
    workers: int
    prefills: int
    contender: str
    scale: float
    surge: float
    tpot_ms: int
    itl_ms: float
    seed: int
    length: float = 1.0

    @property
    def split(self) -> str:
        """As it is told: 12P4D, 16 unified, or 16 auto."""
        if self.contender == AUTO:
            return f"{self.workers} auto"
        return f"{self.prefills}P{self.workers - self.prefills}D" if self.prefills else f"{self.workers} unified"


@dataclass(frozen=True)
class Options:
    """What of the bench is run. `length` shortens runs for a look at all of it at once; `itl` is the ITL target of
    the workers as a share of the TPOT that is judged. With `auto` a split that follows the load runs in every cell;
    where traffic shifts, every split then has `seeds_shifted` seeds, as each may be the best of a phase."""

    traffics: tuple[str, ...] = TRAFFICS
    sizes: tuple[int, ...] = SIZES
    loads: tuple[float, ...] = LOADS
    tpots_ms: tuple[int, ...] = TPOTS_MS
    shares: tuple[float, ...] = SHARES
    peers: tuple[str, ...] = PEERS
    auto: bool = True
    ablations: bool = True
    seeds: int = 5
    seeds_ablated: int = 3
    seeds_shifted: int = 3
    splits_kept: int = 3
    length: float = 1.0
    itl: float = 1.0

    def cells(self) -> tuple[Cell, ...]:
        """Loads that follow each other have the other figures in common."""
        return tuple(
            Cell(traffic, workers, load, tpot_ms)
            for traffic in self.traffics
            for workers in self.sizes
            for tpot_ms in self.tpots_ms
            for load in self.loads
        )

    def splits(self, workers: int) -> tuple[int, ...]:
        """How many workers take prompts for others, each once, 0 (all unified) among them where it is asked for."""
        return tuple(dict.fromkeys(prefills(share, workers) for share in self.shares))

    def peers_of(self, split: int, workers: int) -> tuple[str, ...]:
        """Those that differ from each other on workers in these roles."""
        of_workers = roles(prefill=split, decode=workers - split) if split else roles(unified=workers)
        left_out = set(CURRENT) - set(current(of_workers))
        return tuple(name for name in self.peers if name not in left_out)

    def compared(self) -> frozenset[Cell]:
        """The cells in which peers run and the parts of the price are left out: of each traffic one below its
        capacity and one close to it, in turn with few and many workers, with a tight and a wide bound."""
        chosen = []
        for place, traffic in enumerate(self.traffics):
            small, large = self.sizes[0], self.sizes[-1]
            tight, wide = min(self.tpots_ms), max(self.tpots_ms)
            turned = place % 2 == 1
            for load, workers, tpot_ms in (
                (0.95, large if turned else small, wide),
                (0.8, small if turned else large, tight),
            ):
                at = min(self.loads, key=lambda each: abs(each - load))
                chosen.append(Cell(traffic, workers, at, tpot_ms))
        return frozenset(chosen)

    def run(self, cell: Cell, capacity: float, prefills: int, contender: str, seed: int) -> Run:
        """A contender's run in a cell whose capacity is so many units."""
        over = cell.load > 1
        return Run(
            traffic=cell.traffic,
            workers=cell.workers,
            prefills=prefills,
            contender=contender,
            scale=round(capacity * (CALM if over else cell.load), 4),
            surge=round(cell.load / CALM, 4) if over else 1.0,
            tpot_ms=cell.tpot_ms,
            itl_ms=self.itl_ms(cell.tpot_ms),
            seed=seed,
            length=self.length,
        )

    def itl_ms(self, tpot_ms: int) -> float:
        """The workers' target where TPOT is judged by so much."""
        return round(self.itl * tpot_ms, 3)


def prefills(share: float, workers: int) -> int:
    """Of so many workers; but for a share of 0 one at least on either side."""
    return 0 if share == 0 else min(workers - 1, max(1, round(share * workers)))


def run_of(fields: dict[str, object]) -> Run:
    """A run that was written down. Raises `bad_setting` when fields are missing or unknown."""
    try:
        return Run(**fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise TandemError("bad_setting", f"a line of results has other fields than a run: {error}") from error


def fields_of(run: Run) -> dict[str, object]:
    """To write it down."""
    return asdict(run)
