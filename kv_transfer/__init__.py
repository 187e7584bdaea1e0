"""Moving KV blocks: transports, tickets, the export side, the fetch side, the index of who has what."""
