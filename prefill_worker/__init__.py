"""The prefill role: computes prompts, and lets decode workers pull the KV blocks.

What a prefill worker does with a request (`Submit`, mode `prefill`):

1. The scheduler computes the prompt in chunks; each full block gets a digest (`tandem.engine.scheduler`).
2. The blocks are exported under a lease while the prompt is still being computed (`kv_transfer.export`). To pull them
   takes a ticket, signed with the service's key, for this lease and these blocks (`kv_transfer.tickets`).
3. The first token goes up the link to the router, which relays it to the decode worker.
4. The lease ends when the pull is acknowledged, released by the router, or over time; then the blocks are free.

What only this role does, against `decode_worker`: it always serves pulls, so it needs the ticket key; it takes modes
`prefill` and `local` (a whole request, where no decode worker is to be had); it never pulls for a hand-off.
Everything else (links, text, health, drain, tiers) is the same for all roles and lies in `tandem.worker`.
"""
