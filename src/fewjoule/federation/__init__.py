"""The same methods between real machines: one process per agent, a parameter server, certificates, state on disk.

    blocks    arrays and a note as bytes; sizes and shapes are checked before anything is taken from them
    wire      a message: a block with an agent's report
    state     a site's state on disk: a block that is written whole or not at all, bound to one run
    spec      what a run agreed on: method, model, seed, agents, policy; from a study with `[federation]`
    agent     one agent's side of a run, calling the method's `agent`
    consent   what an agent's owner agreed to
    server    the server's side, calling the method's `server`
    records   what the server keeps of every answer; `journal` is the file of its rows, which only grows
    trust     what the server believes of an agent: sizes, readings, texts
    drive     the loop over any channel; `patience` is how it waits out a full disk
    results   from the server's results to the run folder

These modules know nothing of the network. The modules in `carrier` carry them over gRPC and need the extra:
pip install 'fewjoule[federation]'.
"""
