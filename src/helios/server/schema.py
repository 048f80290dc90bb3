"""The two request bodies: names, types and ranges that need no model and no engine to check.

Every optional field may also be null, which means its default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from helios.engine.messages import GrammarMessage
from helios.engine.ports import MAX_LOGIT_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS
from helios.server import output_format as formats
from helios.server import tool_prompt
from helios.server import tools as calling
from helios.server.config import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_TENANT_LENGTH,
    MAX_TOKENS_FIELD,
)
from helios.server.errors import shown

TEXT_SCHEMA: dict[str, Any] = {"type": "string", "pattern": "^[^\\x00]*$"}
_TOKEN_IDS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 1,
}
_PROMPT_TEXT_SCHEMA = {**TEXT_SCHEMA, "minLength": 1}
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _PROMPT_TEXT_SCHEMA,
        {
            "type": "array",
            "items": _PROMPT_TEXT_SCHEMA,
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
        _TOKEN_IDS_SCHEMA,
        {
            "type": "array",
            "items": _TOKEN_IDS_SCHEMA,
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
    ]
}
_STOP_TEXT_SCHEMA = {**TEXT_SCHEMA, "minLength": 1, "maxLength": MAX_STOP_LENGTH}
STOP_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _STOP_TEXT_SCHEMA,
        {"type": "array", "items": _STOP_TEXT_SCHEMA, "maxItems": MAX_STOP_STRINGS},
        {"type": "null"},
    ]
}
BIAS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": MAX_LOGIT_BIAS,
        },
        {"type": "null"},
    ]
}
CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        TEXT_SCHEMA,
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": TEXT_SCHEMA},
                "required": ["type", "text"],
                "additionalProperties": False,
            },
        },
    ]
}


def refusal(message: str) -> PydanticCustomError:
    """Return a validation error that says exactly this."""
    return PydanticCustomError("refused", "{message}", {"message": message})


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(value: Any) -> list[str] | list[list[int]]:
    """Normalise the four forms of `prompt` to a list of texts or of token id lists."""
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(map(_is_integer, value))
    ):
        value = [value]
    if not isinstance(value, list) or not value:
        raise refusal("must be a string, a list of strings, a list of token ids or a list of those")
    if len(value) > MAX_PROMPTS:
        raise refusal(f"has {len(value)} prompts, more than the limit of {MAX_PROMPTS}")
    if all(isinstance(item, str) for item in value):
        return value
    for item in value:
        if not (isinstance(item, list) and item and all(map(_is_integer, item))):
            raise refusal("must hold only strings, or only non-empty lists of token ids")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise refusal(f"must be a string or a list of strings, not {shown(value)}")
    if len(stops) > MAX_STOP_STRINGS:
        raise refusal(f"has {len(stops)} stop strings, more than the limit of {MAX_STOP_STRINGS}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise refusal(f"must hold non-empty strings only, not {shown(stop)}")
        if len(stop) > MAX_STOP_LENGTH:
            raise refusal(
                f"holds a string of {len(stop)} characters, more than the limit of "
                f"{MAX_STOP_LENGTH}"
            )
    return tuple(stops)


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise refusal(f"must map token ids to numbers, not {shown(value)}")
    if len(value) > MAX_LOGIT_BIAS:
        raise refusal(f"has {len(value)} entries, more than the limit of {MAX_LOGIT_BIAS}")
    entries = []
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and key == str(int(key))):
            raise refusal(f"has the key {shown(key)}, which is not a token id")
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not (number and -100 <= bias <= 100):
            raise refusal(f"for token {key} must be a number from -100 to 100, not {shown(bias)}")
        entries.append((int(key), float(bias)))
    return tuple(sorted(entries))


def _content(value: Any) -> Any:
    """Join text parts with a line break; name what is not text."""
    if not isinstance(value, list):
        if value is None:
            raise refusal("must be a string or a list of text parts, not null")
        return value
    if not value:
        raise refusal("must not be an empty list")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            named = f"of type {shown(kind)}" if isinstance(part, dict) else shown(part)
            raise refusal(f"part {index} is {named}; only text parts are supported")
        if not isinstance(part.get("text"), str) or len(part) != 2:
            raise refusal(f"part {index} must hold exactly type and text (a string)")
        texts.append(part["text"])
    return "\n".join(texts)


class StrictModel(BaseModel):
    """No coercion, no unknown name, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="Send the usage in one last chunk.")


class SamplingFields(StrictModel):
    """Fields that both kinds of completion share."""

    model: str = Field(description="The name of the served model, as listed by /v1/models.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices; default 1.")
    stream: bool | None = Field(None, description="Answer with server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    max_tokens: int | None = Field(
        None, description="Most output tokens; cut to what is left of the context."
    )
    stop: Annotated[tuple[str, ...], PlainValidator(_stops), WithJsonSchema(STOP_SCHEMA)] = Field(
        (), description="Strings that end the output and are not part of it."
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, max_length=MAX_STOP_TOKENS, description="Tokens that end the output."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Keep the stop string that ended the output."
    )
    ignore_eos: bool | None = Field(None, description="Do not end at the model's end token.")
    seed: int | None = Field(
        None, ge=-(2**63), le=2**64 - 1, description="Repeats an answer; random when absent."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default 1.")
    top_p: float | None = Field(None, ge=0, le=1, description="Default 1.")
    top_k: int | None = Field(
        None, ge=-1, le=MAX_TOKENS_FIELD, description="0 or -1 (default): all tokens."
    )
    min_p: float | None = Field(None, ge=0, le=1, description="Default 0.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Default 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Default 0.")
    repetition_penalty: float | None = Field(None, ge=0.01, le=10, description="Default 1: none.")
    logit_bias: Annotated[
        tuple[tuple[int, float], ...], PlainValidator(_bias), WithJsonSchema(BIAS_SCHEMA)
    ] = Field((), description="Token id -> number added to its logit.")
    response_format: Annotated[
        Any,
        PlainValidator(formats.response_format),
        WithJsonSchema(formats.RESPONSE_FORMAT_SCHEMA),
    ] = Field(None, description="What the answer must look like; enforced token by token.")
    structured_outputs: Annotated[
        Any,
        PlainValidator(formats.structured_outputs),
        WithJsonSchema(formats.STRUCTURED_OUTPUTS_SCHEMA),
    ] = Field(None, description="The same in the words of vLLM.")
    guided_json: Annotated[
        Any, PlainValidator(formats.guided_json), WithJsonSchema(formats.GUIDED_JSON_SCHEMA)
    ] = Field(None, description="A JSON schema; older name of vLLM.")
    guided_regex: Annotated[
        Any, PlainValidator(formats.guided_regex), WithJsonSchema(formats.GUIDED_REGEX_SCHEMA)
    ] = Field(None, description="A regular expression; older name of vLLM.")
    guided_choice: Annotated[
        Any, PlainValidator(formats.guided_choice), WithJsonSchema(formats.GUIDED_CHOICE_SCHEMA)
    ] = Field(None, description="Texts of which one is the answer; older name of vLLM.")
    user: str | None = Field(
        None,
        max_length=MAX_TENANT_LENGTH,
        pattern="^[^\\x00]*$",
        description="Tenant: its requests share one fair share of the machine; kept in traces.",
    )
    priority: float | None = Field(
        None,
        ge=0.01,
        le=100,
        description="Weight of this request against others; default 1, 2 counts twice.",
    )

    @property
    def grammar(self) -> GrammarMessage | None:
        """What the output must look like, whichever field says so; None: any text."""
        given = {name: getattr(self, name) for name in formats.FORMAT_FIELDS}
        return formats.the_one(given)


class Message(StrictModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="developer is served as system."
    )
    content: Annotated[str, BeforeValidator(_content), WithJsonSchema(CONTENT_SCHEMA)] = Field(
        description="Text, or text parts, which are joined with a line break."
    )
    tool_calls: Annotated[
        Any, PlainValidator(tool_prompt.tool_calls), WithJsonSchema(tool_prompt.TOOL_CALLS_SCHEMA)
    ] = Field((), description="Calls that an assistant message made.")
    name: str | None = Field(None, pattern="^[a-zA-Z0-9_-]{1,64}$")
    tool_call_id: str | None = Field(None, pattern="^[a-zA-Z0-9_-]{1,128}$")


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS_FIELD,
        description="Older name of max_completion_tokens; of both the smaller holds.",
    )
    max_completion_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS_FIELD,
        description="Most output tokens; what is left of the context when absent.",
    )
    tools: Annotated[Any, PlainValidator(calling.tools), WithJsonSchema(calling.TOOLS_SCHEMA)] = (
        Field((), description="Functions that the answer may call.")
    )
    tool_choice: Annotated[
        Any, PlainValidator(calling.tool_choice), WithJsonSchema(calling.CHOICE_SCHEMA)
    ] = Field("", description="Whether it must: none, auto (default), required, or one function.")
    parallel_tool_calls: bool | None = Field(
        None, description="Whether a required call may be several; default true."
    )
    logprobs: bool | None = Field(None, description="Report log-probabilities.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="Alternatives per token; needs logprobs."
    )

    @pydantic.model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        _check_stream_options(self)
        formats.the_one({name: getattr(self, name) for name in formats.FORMAT_FIELDS})
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "needs logprobs to be true")
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        use = self.tool_use
        if use is not None:
            use.check_format(self.grammar)
        for message in self.messages:
            if message.tool_calls and message.role != "assistant":
                raise PydanticCustomError("tool_calls", "only an assistant message has tool_calls")

    @property
    def tool_use(self) -> calling.ToolUse | None:
        """What the answer may call; None: nothing."""
        in_parallel = self.parallel_tool_calls is not False
        return calling.tool_use(self.tools, self.tool_choice, in_parallel=in_parallel)


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[Any, PlainValidator(_prompts), WithJsonSchema(PROMPT_SCHEMA)] = Field(
        description="A text, token ids, or a list of either. Prompts times n: at most "
        f"{MAX_CHOICES}."
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        le=MAX_TOKENS_FIELD,
        description="Most output tokens; default 16, cut to what is left of the context.",
    )
    echo: bool | None = Field(None, description="Put the prompt before the output.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Report log-probabilities with this many alternatives; with echo also those "
        "of the prompt.",
    )

    @pydantic.model_validator(mode="after")
    def _agree(self) -> CompletionRequest:
        _check_stream_options(self)
        formats.the_one({name: getattr(self, name) for name in formats.FORMAT_FIELDS})
        choices = len(self.prompt) * (self.n or 1)
        if choices > MAX_CHOICES:
            raise PydanticCustomError(
                "too_many_choices",
                "times the number of prompts is {choices}, more than the limit of {limit}",
                {"choices": choices, "limit": MAX_CHOICES},
            )
        return self


def _check_stream_options(fields: SamplingFields) -> None:
    if fields.stream_options is not None and not fields.stream:
        raise PydanticCustomError("stream_options", "needs stream to be true")
