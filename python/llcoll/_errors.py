"""The errors that llcoll raises, and how they come out of torch's ops."""

from . import _C


class LlcollError(RuntimeError):
    """Anything that llcoll refuses or fails to do."""


class CollectiveTimeout(LlcollError):
    """A rank waited to its limit; the text names whom it waited for."""


class CollectiveMismatch(LlcollError):
    """Debug mode (LLCOLL_DEBUG=1): the ranks did not make the same call."""


class CollectiveAborted(LlcollError):
    """The communicator has failed, or some rank aborted it; build a new one."""


CLASSES: tuple[type[LlcollError], ...] = (
    LlcollError,
    CollectiveTimeout,
    CollectiveMismatch,
    CollectiveAborted,
)
_C.set_error_classes(*CLASSES)

INTERRUPTED = "interrupted"


def converted(error: RuntimeError) -> BaseException:
    """The exception that stands for what a raw op raised: ops can raise RuntimeError only.

    Its text then begins with the class name. Where a signal handler raised during the wait, it is
    the handler's exception.
    """
    if isinstance(error, LlcollError):
        return error
    text = str(error)
    for cls in CLASSES:
        prefix = f"{cls.__name__}: "
        if text.startswith(prefix):
            text = text[len(prefix) :]
            if text.startswith(INTERRUPTED):
                raised = _C.take_interrupt()
                if raised is not None:
                    return raised
            return cls(text)
    return error
