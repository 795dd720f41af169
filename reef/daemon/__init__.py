"""The HTTP daemon: gateway, reports, admin. app.py is the one composition root."""
