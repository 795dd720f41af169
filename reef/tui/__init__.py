"""The dashboard of a daemon. Knows only the client, the configuration's places and errors; called by ``reef tui``.

app.py is the frame, store.py what is known, actions.py what can be done, tabs/ one file per tab.
"""
