"""An API that starts workflows; a command that is sent again starts no second workflow.

    workflows.py    the tables, and starting a workflow once for each command id
    api.py          the same over HTTP, with Flask
    __main__.py     `python -m examples.commands`: the API, and a caller that sends one command three times at once

The caller chooses a `command_id` for each command. If it gets no response, it sends the command again with the same id.
"""
