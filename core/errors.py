"""Errors that say what to do next.

Everything that can go wrong because of a learner, a teacher or a machine is an `ExplainerError`: one sentence, in plain
words, that ends with the remedy. Programming mistakes stay ordinary exceptions, so that they are noticed.

Each class has a `code`. `str(error)` is the English sentence; a page may look up the same sentence in the learner's
language under `error.<code>` and fill it with `error.values`. So core stays free of translations, and no page ever
shows a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class ExplainerError(Exception):
    """Base of all errors meant for a person. `template` is filled with the keyword values."""

    code: ClassVar[str] = "explainer"
    template: ClassVar[str] = "{message}"

    def __init__(self, **values: object) -> None:
        self.values = values
        super().__init__(self.template.format(**values))

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not survive pickling without help (test runners pickle them).
        return (_rebuild, (type(self), self.values))


def _rebuild(cls: type[ExplainerError], values: dict[str, object]) -> ExplainerError:
    return cls(**values)


class ModelNotFoundError(ExplainerError):
    code = "model_not_found"
    template = "The model “{source}” was not found. {remedy}"


class ModelDamagedError(ExplainerError):
    code = "model_damaged"
    template = "The model file {path} is damaged (its SHA-256 is not the expected one). Install it again: {remedy}"


class UnsupportedModelError(ExplainerError):
    code = "unsupported_model"
    template = (
        "Models of the family “{family}” cannot be traced here because of {reason}. "
        "Choose a model with plain attention, for example SmolLM2, Llama, Qwen2, Qwen3, Mistral or GPT-2."
    )


class UnsupportedConfigError(ExplainerError):
    code = "unsupported_config"
    template = "This configuration cannot be computed exactly: “{key}” {reason}. {remedy}"


class InvalidSettingError(ExplainerError):
    code = "invalid_setting"
    template = "“{name}” cannot be {value}. Choose {allowed}."


class EmptyPromptError(ExplainerError):
    code = "empty_prompt"
    template = "The prompt is empty. Type at least one character."


class PromptTooLongError(ExplainerError):
    code = "prompt_too_long"
    template = "The prompt has {n_tokens} tokens; this run can take {limit}. Shorten it by {excess} tokens."


class QueueFullError(ExplainerError):
    code = "queue_full"
    template = "{n_waiting} runs are already waiting. Wait a moment, then press Run again."


class RunFailedError(ExplainerError):
    code = "run_failed"
    template = "The run stopped: {reason}. Nothing you typed is lost; press Run to try again."


class OutOfMemoryError(ExplainerError):
    code = "out_of_memory"
    template = "The machine ran out of memory. Choose a shorter prompt or fewer tokens, then run again."


class StillRunningError(ExplainerError):
    code = "still_running"
    template = "The run has not finished after {timeout_s} seconds. Wait longer or cancel it."


class TraceFileError(ExplainerError):
    code = "trace_file"
    template = "The file {path} cannot be read as a recorded run: {reason}. Record it again with `make record`."


class NotTracedError(ExplainerError):
    code = "not_traced"
    template = (
        "Position {position} was not traced: only the first {n_traced} positions of this run are. "
        "Choose an earlier position, or run a shorter prompt."
    )


class BusyError(ExplainerError):
    code = "busy"
    template = "Another measurement is running on this machine. Wait for it to finish, then start yours."


class UnsupportedTokenizerError(ExplainerError):
    code = "unsupported_tokenizer"
    template = (
        "The merges of this model's tokenizer cannot be shown: {reason}. "
        "Choose a model with byte-level BPE, for example SmolLM2, Llama 3, Qwen2, Qwen3 or GPT-2."
    )


class NoChatTemplateError(ExplainerError):
    code = "no_chat_template"
    template = "This model has no chat template that takes this prompt. Choose raw text instead."


class SystemPromptRefusedError(ExplainerError):
    code = "system_prompt_refused"
    template = "The chat template of this model takes no system prompt. Leave the system prompt empty."


# The next six tell what went wrong with a server that somebody measures. `why` names the reason for a translation
# (`reason.<why>` in the page's text); `reason` is the same in English.


class EndpointOffError(ExplainerError):
    code = "endpoint_off"
    template = "This instance does not talk to other servers. Run the app on your own machine to measure yours."


class EndpointUrlError(ExplainerError):
    code = "endpoint_url"
    template = "The address {url} cannot be used: {reason}. Type one like http://127.0.0.1:8000/v1."


class EndpointUnreachableError(ExplainerError):
    code = "endpoint_unreachable"
    template = "The server {url} was not reached: {reason}. Check that it runs, and its address and port."


class EndpointTimeoutError(ExplainerError):
    code = "endpoint_timeout"
    template = "The server took longer than {seconds} s {reason}. Try a shorter answer, or a server that is nearer."


class EndpointStatusError(ExplainerError):
    code = "endpoint_status"
    template = (
        "The server refused the request (HTTP {status}): {said}. "
        "Check the key, the model's name and the address."
    )


class EndpointAnswerError(ExplainerError):
    code = "endpoint_answer"
    template = "The server's answer could not be measured: {reason}. Check that the address ends in /v1."
