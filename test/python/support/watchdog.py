# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ranks that wait for each other for ever fail a test, and do not hold up the others."""

import threading

#: Seconds, also on a machine with other work.
LIMIT = 300


def within_limit(function, *arguments, limit=LIMIT):
    """Calls `function` in a thread of its own."""
    outcome = []

    def call():
        try:
            outcome.append((function(*arguments), None))
        except BaseException as error:  # noqa: BLE001 (raised below)
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit)
    assert outcome, f"no end after {limit} seconds"
    result, error = outcome[0]
    if error:
        raise error
    return result
