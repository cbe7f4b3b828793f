"""A check of "no loop": counts the lines that an answer runs, whatever the machine's load."""

from fa_numba.workbook.graders.causes import Wrong


def expect_no_loop(function, *args, over, most=100):
    """Fail if a call runs more lines of the answer than `most`.

    The arguments are of a size far above `most` along each axis that must not be looped over;
    `over` names these axes for the message. `most` are the lines, and rounds of comprehensions,
    that an answer without such a loop needs at most.
    """
    __tracebackhide__ = True
    arguments = (function, list(args), most)
    if function._answer.request("call", _runs_many_lines, args=arguments):
        raise Wrong(
            f"{function.__name__} runs more than {most} lines: is there a loop over {over}? Let "
            "NumPy work on whole arrays",
            causes=[f"There is a Python loop over {over}."],
        )


def _runs_many_lines(function, arguments, most):
    """Runs in the answering process, as code; so it imports what it needs."""
    import sys

    lines = 0

    class Many(BaseException):
        pass

    def count(frame, event, arg):
        nonlocal lines
        if frame.f_code.co_filename != function.__code__.co_filename:
            return None
        lines += event in ("line", "call")
        if lines > most:
            raise Many
        return count

    sys.settrace(count)
    try:
        function(*arguments)
    except Many:
        return True
    finally:
        sys.settrace(None)
    return False
