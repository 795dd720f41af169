import sys

sys.path.insert(0, ".")
try:
    from slug import slug
except Exception as error:
    print(f"slug.py cannot be used: {error!r}")
    sys.exit(1)

CASES = {
    "Hello, World!": "hello-world",
    "  Crème brûlée & Straße  ": "creme-brulee-strasse",
    "---": "untitled",
    "": "untitled",
    "x" * 60: "x" * 40,
    "alpha beta gamma delta epsilon zeta eta theta": "alpha-beta-gamma-delta-epsilon-zeta-eta",
    "C++ vs. C#": "c-vs-c",
}
wrong = []
for title, expected in CASES.items():
    try:
        found = slug(title)
    except Exception as error:
        found = error
    if found != expected:
        wrong.append(f"slug({title!r}) gave {found!r}, not {expected!r}")
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
