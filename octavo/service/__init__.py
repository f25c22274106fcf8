"""Text in, an asynchronous stream of text deltas out; every front end stands on this."""
