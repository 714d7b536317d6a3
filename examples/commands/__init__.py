"""Commands that may be sent again: an API that starts workflows, each once.

    workflows.py    the tables, and starting a workflow once for each command id
    api.py          the same over HTTP, with Flask
    __main__.py     `python -m examples.commands`: the API, and somebody who sends one command three times at once

Whoever sends a command chooses its `command_id`, and sends the same one when no answer has come.
"""
