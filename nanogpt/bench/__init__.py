"""What do things cost? The ladder, the gain of a cache, the roofline, load, speculation, training.

Measurements are interleaved, and a ratio is of neighbours: what disturbs the machine then disturbs
both sides. Each result is plain data, with the tokens compared before a speed is shown. Start at
ladder.py, which has all of this in one place. First what is measured, then what it is measured
against, then how it is shown:

    ladder       every engine on the same tokens, beside the machine's limits
    gain         a cache's speedup over text length and batch, and where the time goes without one
    speculation  speculative decoding over the best engine
    training     how fast each recipe reaches a loss; `entries` are what may be compared
    load         throughput and latency under load: `arrivals` are the requests, and `replies` what
                 came back and when, from one of our `schemes` or from a `loaded_server`
    under_load   what is measured so: all schemes of our engine, or another server

    roofline     the machine's limits, and the work of one token, counted
    throughput   the arithmetic of a training step, and the peak of a device
    peers        other programs with our weights, such as transformers; `llama_cpp` is one
    pace         how fast this machine does a fixed piece of work: for a plan's estimate
    shapes       models with random weights, by the name of their shape

    environment  the environment card: all that a result depends on besides the code
    tables       times and counts as text, and the timing of interleaved runs
    reports      each benchmark's result as text for a terminal
"""
