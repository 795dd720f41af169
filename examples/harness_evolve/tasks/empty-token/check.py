import sys

sys.path.insert(0, ".")
from auth import allowed

CASES = {"Bearer reef": True, "bearer  reef ": True, "BEARER reef": True, None: False, "": False, "Bearer": False, "Bearer ": False,
         "Bearer re": False, "Basic reef": False, "reef": False, "Bearer reef x": False}  # fmt: skip
wrong = []
for header, expected in CASES.items():
    try:
        found = allowed(header)
    except Exception as error:
        found = error
    if found is not expected:
        wrong.append(f"allowed({header!r}) gave {found!r}")
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
