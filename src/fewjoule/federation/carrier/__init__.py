"""Carries a federation's messages over gRPC with mutual TLS: agents dial out, the certificate is the identity.

    frames     messages in pieces; a length is checked before memory is taken
    tls        options and credentials of both ends; why a connection failed, in words
    gate       who may call what on the server; everything else is refused, logged and counted
    handshakes who did not even get to the gate
    crowds     how many connections one address may have
    streams    the agents that are connected, one stream each
    channel    the drive's view of them
    jobs       the runs on the server, one after the other, each from its state on disk
    desk       what the operator may ask
    serve      the server's process
    dial       the agent's process
    log        lines for people, and a file with everything
    metrics    numbers for a monitoring system
    operator   the operator's side of a connection; `follow` carries one run to its folder, whose `facts` stay there
    view       lines about a run; `live` is a terminal's view, `page` the run folder's page while the run goes
    demo       all of it on one machine
    site       an agent's own data, model and meter

There is no relay between agents, no remote administration, and no code in any message.
"""
