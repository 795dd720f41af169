import sys

sys.path.insert(0, ".")
from table import rows

CASES = {
    "a,b\nc,d\n": [["a", "b"], ["c", "d"]],
    'a,"b,c"\r\nd,e': [["a", "b,c"], ["d", "e"]],
    '"say ""hi""",x\n': [['say "hi"', "x"]],
    '"two\nlines",y\n': [["two\nlines", "y"]],
    "": [],
    "a,\n,b\n": [["a", ""], ["", "b"]],
}
wrong = []
for text, expected in CASES.items():
    try:
        found = [list(row) for row in rows(text)]
    except Exception as error:
        found = error
    if found != expected:
        wrong.append(f"rows({text!r}) gave {found!r}")
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
