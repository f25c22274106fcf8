"""The engine: the step loop, the executor that runs plans, and the clients that talk to it. Import submodules; nothing is loaded here."""
