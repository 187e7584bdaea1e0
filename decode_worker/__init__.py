"""The decode role: pulls the KV blocks of prompts that were computed elsewhere, verifies them, and generates.

A decode worker serves a request (`Submit`, mode `decode`) in four steps. First it reserves slots for the prompt's
blocks before it pulls any of them (`tandem.engine.scheduler`). Second, it pulls blocks while the prefill worker still
computes (`kv_transfer.fetch`) and checks each against its digest; a block that does not come or does not verify is
computed here. Third, once the blocks are there and the first token is known, the sequence decodes with all others of
the batch; the worker assembles text and finds stop strings here (`tandem.worker.text`). Fourth, when the worker
leaves, its streams migrate: their blocks are exported to the worker that continues them.

Roles `unified` and `auto` are this program too. A unified worker takes whole requests (mode `local`); an auto worker
computes prompts for other workers as well (mode `prefill`), when the router's planner says so.

Unlike `prefill_worker`, these roles pull. They also export blocks that others reuse or take over, if they have the
ticket key; without it they answer no pull but their own canary's. Everything else is in `tandem.worker`.
"""
