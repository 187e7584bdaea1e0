"""The decode role: pulls the KV blocks of prompts that were computed elsewhere, verifies them, and generates.

What a decode worker does with a request (`Submit`, mode `decode`):

1. Slots for the prompt's blocks are reserved before anything is pulled (`tandem.engine.scheduler`).
2. Blocks are pulled while the prefill worker still computes (`kv_transfer.fetch`), each checked against its digest; a
   block that does not come or does not verify is computed here.
3. Once they are there, and the first token is known, the sequence decodes with all others of the batch. Text is put
   together here, stop strings are found here (`tandem.worker.text`).
4. When the worker leaves, its streams move: their blocks are exported to the worker that goes on with them.

Roles `unified` and `auto` are this program too. A unified worker takes whole requests (mode `local`); an auto worker
computes prompts for other workers as well (mode `prefill`), when the router's planner says so.

What only these roles do, against `prefill_worker`: they pull. They export, too, what others reuse or take over, if
they have the ticket key; without it they answer no pull but their own canary's. Everything else lies in
`tandem.worker`.
"""
