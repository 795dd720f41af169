"""From records to releases: types, processors, preparers, the loop and the runtimes."""
