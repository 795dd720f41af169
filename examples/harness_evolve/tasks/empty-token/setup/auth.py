TOKEN = "reef"


def allowed(header):
    scheme, token = header.split(" ")
    return scheme == "Bearer" and TOKEN.startswith(token)
