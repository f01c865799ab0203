"""Does a cache change the texts of this package's models, of transformers, of a server?

The verdicts are those of kv_referee, which knows neither this package nor servers. This room shows
it both, and tries it on what the public has found: it must convict every bug of the museum and
acquit every fix. Start at referee.py.

    referee        `referee`: all that kv_referee takes, this package's models, and servers
    ours           a GPT or a Decoder as the referee sees it, with every cache that it supports
    server         a server, which returns texts but no logits
    plugin         the pytest fixture `assert_sound` for both

    architectures  small models of transformers' architectures, and models from its folders
    survey         the referee on all of them, as a table
    by_hand        verdicts by hand, where the survey's was wrong or late
    museum         public cache bugs as small models, each with and without its bug
    sweep          thousands of random texts, each decoded in two ways
"""
