"""What the same recipes need to run on Slime and SGLang."""
