"""Tandem: LLM serving with prefill and decode on separate, separately scaled workers."""

import os
from typing import Final

__version__ = "0.1.0"

# gRPC's handlers of `fork` start its threads again in the child, which closes its descriptors before it becomes
# another program: about one child in fifty dies of SIGABRT so, of a parent that is in a call (grpcio 1.85). No child
# of ours goes on without becoming another program, so none needs them. gRPC reads this when it is imported, its
# callers import this package first, and children inherit it.
_GRPC_FORK_HANDLERS: Final = "GRPC_ENABLE_FORK_SUPPORT"
os.environ.setdefault(_GRPC_FORK_HANDLERS, "0")
