"""The same methods between real machines: one process per agent, a parameter server, certificates, state on disk.

    wire      a message as bytes; sizes and shapes are checked before anything is taken from it
    state     a site's state on disk: atomic, checksummed, bound to one run
    spec      what a run agreed on: method, model, seed, agents, policy
    agent     one agent's side of a run, calling the method's `agent`
    server    the server's side, calling the method's `server`; `drive` is the loop over any channel
    channel   agents in the same process, for tests and for checking a study before it goes out

These modules know nothing of the network. `nvflare_app`, `provision`, `process`, `operator` and `demo` carry them over
NVFlare and need the extra: pip install 'fewjoule[federation]'.
"""
