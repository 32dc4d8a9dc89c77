"""Commands about the delta rule alone, and the options of `export` that declare a kernel of it."""
