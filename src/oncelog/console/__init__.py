"""A console in a browser: transactions as they happen, on any cluster that speaks the Kafka protocol.

    settings, server       where it listens, what it may do; the process around the application
    application            addresses, and how each page becomes HTML or JSON
    guard                  who may ask: Host, Origin, content security policy
    watch, events          one poller for all tabs, and the stream that tells tabs about news
    pages/                 one module per kind of page: what it shows, as JSON values
    sentences, lanes       the state of a cluster in sentences, and transactions laid out as bars: without I/O
    messages               records of a partition, within a budget
    changes, audit         what may be changed, after a confirmation, and the log of it
    templates/, static/    HTML, CSS and JavaScript, as they are served

Pages ask the cluster through `oncelog.monitoring`, as commands do, so that page and command cannot disagree.
"""
