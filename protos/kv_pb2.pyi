from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiverFrame(_message.Message):
    __slots__ = ("open", "acknowledge", "refused")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    open: Open
    acknowledge: Acknowledge
    refused: Refused
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "lease_id", "ticket", "holder_epoch", "receiver_epoch", "layout", "names")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    HOLDER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    lease_id: str
    ticket: bytes
    holder_epoch: int
    receiver_epoch: int
    layout: Layout
    names: bytes
    def __init__(self, protocol: _Optional[int] = ..., lease_id: _Optional[str] = ..., ticket: _Optional[bytes] = ..., holder_epoch: _Optional[int] = ..., receiver_epoch: _Optional[int] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., names: _Optional[bytes] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("engine", "packing", "dtype", "item_bytes", "layers", "block_tokens", "kv_heads", "head_dim", "tensor_parallel", "pipeline_parallel", "isa", "digest")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ITEM_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    engine: str
    packing: str
    dtype: str
    item_bytes: int
    layers: int
    block_tokens: int
    kv_heads: int
    head_dim: int
    tensor_parallel: int
    pipeline_parallel: int
    isa: str
    digest: str
    def __init__(self, engine: _Optional[str] = ..., packing: _Optional[str] = ..., dtype: _Optional[str] = ..., item_bytes: _Optional[int] = ..., layers: _Optional[int] = ..., block_tokens: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., isa: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("lease_id", "name")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    name: bytes
    def __init__(self, lease_id: _Optional[str] = ..., name: _Optional[bytes] = ...) -> None: ...

class HolderFrame(_message.Message):
    __slots__ = ("offers", "missing", "alive", "first_tokens", "failed", "pool")
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    offers: Offers
    missing: Missing
    alive: Alive
    first_tokens: FirstTokens
    failed: Failed
    pool: Pool
    def __init__(self, offers: _Optional[_Union[Offers, _Mapping]] = ..., missing: _Optional[_Union[Missing, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., first_tokens: _Optional[_Union[FirstTokens, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., pool: _Optional[_Union[Pool, _Mapping]] = ...) -> None: ...

class Offers(_message.Message):
    __slots__ = ("index", "slot", "generation", "epoch", "names", "digests")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    slot: _containers.RepeatedScalarFieldContainer[int]
    generation: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    names: bytes
    digests: bytes
    def __init__(self, index: _Optional[_Iterable[int]] = ..., slot: _Optional[_Iterable[int]] = ..., generation: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., names: _Optional[bytes] = ..., digests: _Optional[bytes] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FirstTokens(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[FirstToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("sequence", "token", "finish")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    token: int
    finish: str
    def __init__(self, sequence: _Optional[int] = ..., token: _Optional[int] = ..., finish: _Optional[str] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("block_bytes", "blocks", "agent", "agent_name", "base", "connection")
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    AGENT_NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    blocks: int
    agent: bytes
    agent_name: str
    base: int
    connection: int
    def __init__(self, block_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., agent: _Optional[bytes] = ..., agent_name: _Optional[str] = ..., base: _Optional[int] = ..., connection: _Optional[int] = ...) -> None: ...
