from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommandFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("submit", "cancel", "provide_first", "sample_first", "drain", "ping", "keep", "claim")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PROVIDE_FIRST_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIRST_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    provide_first: ProvideFirst
    sample_first: SampleFirst
    drain: Drain
    ping: Ping
    keep: Keep
    claim: Claim
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., provide_first: _Optional[_Union[ProvideFirst, _Mapping]] = ..., sample_first: _Optional[_Union[SampleFirst, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("handle", "request_id", "attempt", "mode", "prompt", "branches", "sampling", "stopping", "deadline_s", "tenant_salt", "priority", "remote", "export", "traceparent", "canary", "resume", "resume_key", "kept")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    attempt: int
    mode: str
    prompt: bytes
    branches: _containers.RepeatedCompositeFieldContainer[Branch]
    sampling: Sampling
    stopping: Stopping
    deadline_s: float
    tenant_salt: str
    priority: int
    remote: RemoteKv
    export: Export
    traceparent: str
    canary: bool
    resume: bytes
    resume_key: bytes
    kept: StepOutputs
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., mode: _Optional[str] = ..., prompt: _Optional[bytes] = ..., branches: _Optional[_Iterable[_Union[Branch, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stopping: _Optional[_Union[Stopping, _Mapping]] = ..., deadline_s: _Optional[float] = ..., tenant_salt: _Optional[str] = ..., priority: _Optional[int] = ..., remote: _Optional[_Union[RemoteKv, _Mapping]] = ..., export: _Optional[_Union[Export, _Mapping]] = ..., traceparent: _Optional[str] = ..., canary: _Optional[bool] = ..., resume: _Optional[bytes] = ..., resume_key: _Optional[bytes] = ..., kept: _Optional[_Union[StepOutputs, _Mapping]] = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("sequence", "seed", "forced", "sent_chars")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    SENT_CHARS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    seed: int
    forced: _containers.RepeatedScalarFieldContainer[int]
    sent_chars: int
    def __init__(self, sequence: _Optional[int] = ..., seed: _Optional[int] = ..., forced: _Optional[_Iterable[int]] = ..., sent_chars: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_token", "bias", "logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_token: _containers.RepeatedScalarFieldContainer[int]
    bias: _containers.RepeatedScalarFieldContainer[float]
    logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_token: _Optional[_Iterable[int]] = ..., bias: _Optional[_Iterable[float]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class Stopping(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class RemoteKv(_message.Message):
    __slots__ = ("worker_id", "epoch", "addresses", "lease_id", "ticket")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    lease_id: str
    ticket: bytes
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., lease_id: _Optional[str] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class Export(_message.Message):
    __slots__ = ("lease_id", "decode_epoch", "lease_s")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    decode_epoch: int
    lease_s: float
    def __init__(self, lease_id: _Optional[str] = ..., decode_epoch: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handle", "sequence")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence: int
    def __init__(self, handle: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ProvideFirst(_message.Message):
    __slots__ = ("handle", "sequence", "token")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence: int
    token: int
    def __init__(self, handle: _Optional[int] = ..., sequence: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class SampleFirst(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("handle", "outputs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    outputs: StepOutputs
    def __init__(self, handle: _Optional[int] = ..., outputs: _Optional[_Union[StepOutputs, _Mapping]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("handle", "keys")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, handle: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("within_s",)
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    def __init__(self, within_s: _Optional[float] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class RouterFrame(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RouterEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[RouterEvent, _Mapping]]] = ...) -> None: ...

class RouterEvent(_message.Message):
    __slots__ = ("hello", "step_outputs", "attempt_failed", "attempt_report", "pong", "draining", "ready", "transferred", "claimed", "unclaimed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FAILED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_REPORT_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step_outputs: StepOutputs
    attempt_failed: AttemptFailed
    attempt_report: AttemptReport
    pong: Pong
    draining: Draining
    ready: Ready
    transferred: Transferred
    claimed: Claimed
    unclaimed: Unclaimed
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step_outputs: _Optional[_Union[StepOutputs, _Mapping]] = ..., attempt_failed: _Optional[_Union[AttemptFailed, _Mapping]] = ..., attempt_report: _Optional[_Union[AttemptReport, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., transferred: _Optional[_Union[Transferred, _Mapping]] = ..., claimed: _Optional[_Union[Claimed, _Mapping]] = ..., unclaimed: _Optional[_Union[Unclaimed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "worker_id", "epoch", "role", "model", "model_hash", "revision", "layout", "root", "blocks", "context_tokens", "eos_token_ids", "addresses", "draining", "unready", "canary", "problems")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UNREADY_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    epoch: int
    role: str
    model: str
    model_hash: str
    revision: str
    layout: Layout
    root: bytes
    blocks: int
    context_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    unready: bool
    canary: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[str] = ..., model: _Optional[str] = ..., model_hash: _Optional[str] = ..., revision: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., root: _Optional[bytes] = ..., blocks: _Optional[int] = ..., context_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., addresses: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., unready: _Optional[bool] = ..., canary: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("engine", "packing", "dtype", "item_bytes", "layers", "block_tokens", "kv_heads", "head_dim", "tensor_parallel", "pipeline_parallel", "isa")
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
    def __init__(self, engine: _Optional[str] = ..., packing: _Optional[str] = ..., dtype: _Optional[str] = ..., item_bytes: _Optional[int] = ..., layers: _Optional[int] = ..., block_tokens: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., isa: _Optional[str] = ...) -> None: ...

class StepOutputs(_message.Message):
    __slots__ = ("handle", "sequence", "position", "token", "count", "text", "offset", "finishes", "logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: _containers.RepeatedScalarFieldContainer[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    position: _containers.RepeatedScalarFieldContainer[int]
    token: _containers.RepeatedScalarFieldContainer[int]
    count: _containers.RepeatedScalarFieldContainer[int]
    text: _containers.RepeatedScalarFieldContainer[str]
    offset: _containers.RepeatedScalarFieldContainer[int]
    finishes: _containers.RepeatedCompositeFieldContainer[Finish]
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    def __init__(self, handle: _Optional[_Iterable[int]] = ..., sequence: _Optional[_Iterable[int]] = ..., position: _Optional[_Iterable[int]] = ..., token: _Optional[_Iterable[int]] = ..., count: _Optional[_Iterable[int]] = ..., text: _Optional[_Iterable[str]] = ..., offset: _Optional[_Iterable[int]] = ..., finishes: _Optional[_Iterable[_Union[Finish, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("index", "finish", "stop_string", "stop_token")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish: str
    stop_string: str
    stop_token: int
    def __init__(self, index: _Optional[int] = ..., finish: _Optional[str] = ..., stop_string: _Optional[str] = ..., stop_token: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("index", "drawn", "top_count", "top_token", "top_logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    drawn: _containers.RepeatedScalarFieldContainer[float]
    top_count: _containers.RepeatedScalarFieldContainer[int]
    top_token: _containers.RepeatedScalarFieldContainer[int]
    top_logprob: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., drawn: _Optional[_Iterable[float]] = ..., top_count: _Optional[_Iterable[int]] = ..., top_token: _Optional[_Iterable[int]] = ..., top_logprob: _Optional[_Iterable[float]] = ...) -> None: ...

class AttemptFailed(_message.Message):
    __slots__ = ("handle", "code", "message")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    code: str
    message: str
    def __init__(self, handle: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class AttemptReport(_message.Message):
    __slots__ = ("handle", "tokens_computed", "tokens_reused", "tokens_pulled", "bytes_pulled", "spans")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_REUSED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PULLED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PULLED_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    tokens_computed: int
    tokens_reused: int
    tokens_pulled: int
    bytes_pulled: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, handle: _Optional[int] = ..., tokens_computed: _Optional[int] = ..., tokens_reused: _Optional[int] = ..., tokens_pulled: _Optional[int] = ..., bytes_pulled: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("trace_id", "span_id", "parent_id", "name", "service", "start_s", "end_s", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_s: float
    end_s: float
    attributes: _containers.MessageMap[str, Attribute]
    def __init__(self, trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_id: _Optional[str] = ..., name: _Optional[str] = ..., service: _Optional[str] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("text", "integer", "real", "flag")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    text: str
    integer: int
    real: float
    flag: bool
    def __init__(self, text: _Optional[str] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., flag: _Optional[bool] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("epoch", "count")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    count: int
    def __init__(self, epoch: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("within_s",)
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    def __init__(self, within_s: _Optional[float] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("addresses", "canary", "problems")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    canary: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., canary: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class Transferred(_message.Message):
    __slots__ = ("handle", "holder", "holder_epoch", "path", "seconds", "bytes", "code", "message", "passed_over")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    handle: int
    holder: str
    holder_epoch: int
    path: str
    seconds: float
    bytes: int
    code: str
    message: str
    passed_over: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handle: _Optional[int] = ..., holder: _Optional[str] = ..., holder_epoch: _Optional[int] = ..., path: _Optional[str] = ..., seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., passed_over: _Optional[_Iterable[str]] = ...) -> None: ...

class Claimed(_message.Message):
    __slots__ = ("handle", "resume", "attempt", "mode", "left_s", "sequences", "starts", "transferred")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    resume: bytes
    attempt: int
    mode: str
    left_s: float
    sequences: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    transferred: bool
    def __init__(self, handle: _Optional[int] = ..., resume: _Optional[bytes] = ..., attempt: _Optional[int] = ..., mode: _Optional[str] = ..., left_s: _Optional[float] = ..., sequences: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., transferred: _Optional[bool] = ...) -> None: ...

class Unclaimed(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class StateRequestFrame(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[StateRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[StateRequest, _Mapping]]] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("snapshot_request",)
    SNAPSHOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    snapshot_request: SnapshotRequest
    def __init__(self, snapshot_request: _Optional[_Union[SnapshotRequest, _Mapping]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateFrame(_message.Message):
    __slots__ = ("updates",)
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[StateUpdate]
    def __init__(self, updates: _Optional[_Iterable[_Union[StateUpdate, _Mapping]]] = ...) -> None: ...

class StateUpdate(_message.Message):
    __slots__ = ("load", "kv_delta", "kv_snapshot")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    KV_DELTA_FIELD_NUMBER: _ClassVar[int]
    KV_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    load: Load
    kv_delta: KvDelta
    kv_snapshot: KvSnapshot
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ..., kv_delta: _Optional[_Union[KvDelta, _Mapping]] = ..., kv_snapshot: _Optional[_Union[KvSnapshot, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "waiting", "queued_prompt_tokens", "blocks_free", "blocks_cached", "blocks_exported", "step_s", "prefill_tokens_per_s", "decode_tokens_per_s", "preemptions")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_EXPORTED_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    queued_prompt_tokens: int
    blocks_free: int
    blocks_cached: int
    blocks_exported: int
    step_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    preemptions: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_prompt_tokens: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_exported: _Optional[int] = ..., step_s: _Optional[float] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_tokens_per_s: _Optional[float] = ..., preemptions: _Optional[int] = ...) -> None: ...

class KvDelta(_message.Message):
    __slots__ = ("epoch", "count", "stored", "removed", "tier")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    count: int
    stored: bytes
    removed: bytes
    tier: str
    def __init__(self, epoch: _Optional[int] = ..., count: _Optional[int] = ..., stored: _Optional[bytes] = ..., removed: _Optional[bytes] = ..., tier: _Optional[str] = ...) -> None: ...

class KvSnapshot(_message.Message):
    __slots__ = ("epoch", "count", "names", "last", "tier")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    count: int
    names: bytes
    last: bool
    tier: str
    def __init__(self, epoch: _Optional[int] = ..., count: _Optional[int] = ..., names: _Optional[bytes] = ..., last: _Optional[bool] = ..., tier: _Optional[str] = ...) -> None: ...
