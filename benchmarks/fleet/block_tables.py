"""Jobs and the pool: who has which blocks, what becomes of them when a job ends or has to give way."""

from benchmarks.fleet.pool import Pool
from benchmarks.fleet.worker_request import WorkerRequest
from tandem.engine.scheduler.step_rules import blocks_for


def allocate_blocks(pool: Pool, job: WorkerRequest, spare: int, size: int) -> tuple[int, int]:
    """Pin the prompt's leading blocks that are here and reserve the rest in blocks of `size`, leaving `spare` tokens
    free. Gives (how many blocks were here, 0); (0, free tokens it wants in all), and nothing has changed, when there
    is no room."""
    request = job.request
    here = pool.leading(request.blocks)
    names = request.blocks[:here]
    private = size * blocks_for(job.total, size) - request.leading(here)
    wanted = private + pool.unused_tokens(names) + spare
    if wanted > pool.free:
        return 0, wanted
    pool.pin(names)
    job.pinned, job.published, job.private = names, here, private
    pool.reserve(private)
    return here, 0


def adopt(pool: Pool, job: WorkerRequest) -> int:
    """Use blocks that others have named since in place of the own, still empty ones. Gives how many tokens more are
    known."""
    request, first = job.request, job.published
    if not job.at_edge or len(job.pinned) != first:
        return 0
    blocks, last = request.blocks, first
    while last < len(blocks) and pool.holds(blocks[last]):
        last += 1
    if last == first:
        return 0
    tokens = request.leading(last) - request.leading(first)
    job.private -= tokens
    pool.give_back(tokens)
    pool.pin(blocks[first:last])
    job.pinned, job.published = blocks[:last], last
    before, job.done = job.done, max(job.done, job.known(last))
    return job.done - before


def publish(pool: Pool, job: WorkerRequest, known: int) -> list[int]:
    """Name the blocks that are whole once `known` tokens are known; gives those that are new here.

    A block that is here under its name already stays private, and so do all behind it: blocks are unpinned from the
    tail on.
    """
    request = job.request
    blocks, first = request.blocks, job.published
    last = len(blocks) if known >= request.input_tokens else known // request.block_tokens
    if last <= first:
        return []
    job.published = last
    if len(job.pinned) != first:
        return []
    for place in range(first, last):
        size = request.leading(place + 1) - request.leading(place)
        if not pool.publish(blocks[place], size):
            last = place
            break
        job.private -= size
    job.pinned = blocks[:last]
    return list(blocks[first:last])


def release(pool: Pool, job: WorkerRequest) -> list[int]:
    """The job is over: what it leaves behind may be used again, its answer's tokens being the oldest. Gives the
    answer's blocks that can be found from now on."""
    named = _name_answer(pool, job)
    pool.retire(job.private)
    pool.unpin(job.pinned)
    job.pinned, job.private = (), 0
    return named


def _name_answer(pool: Pool, job: WorkerRequest) -> list[int]:
    """Behind a prompt that lies here whole under its names, blocks that the answer fills. Its last token was never
    put in, so it has no KV."""
    request = job.request
    size = request.block_tokens
    if not request.answer or len(job.pinned) != len(request.blocks):
        return []
    assert request.input_tokens % size == 0, "an answer has names only behind whole blocks"
    named: list[int] = []
    for name in request.answer[: min(job.private, request.emitted - 1) // size]:
        if not pool.publish(name, size):
            break
        named.append(name)
    job.pinned += tuple(named)
    job.private -= len(named) * size
    return named


def preempt_request(pool: Pool, job: WorkerRequest) -> None:
    """The job goes back to where it began; only its prompt's blocks stay for as long as nobody needs the room."""
    pool.unpin(job.pinned)
    pool.give_back(job.private)
    job.pinned, job.private, job.done = (), 0, 0
