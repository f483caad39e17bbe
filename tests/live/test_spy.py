from __future__ import annotations

from ddoctor.live.spy import why


def test_a_python_that_is_newer_than_py_spy() -> None:
    # As py-spy 0.3.11 says it of Python 3.11.
    told = "Error: Unsupported version of Python: 3.11.0\n   0: failure::backtrace::internal"
    assert why(told) == (
        "py-spy is too old for Python 3.11.0: python -m pip install --upgrade py-spy"
    )
    assert why("Error: something else\nmore") == "something else"
    assert why("") == "py-spy saw nothing"
