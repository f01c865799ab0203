"""How are the notebooks run, and what do their cells import?

A run, in the order in which things happen:

    profiles    how much work each profile does: counts, never seconds
    parameters  the parameters of each notebook, and values for them
    plan        everything that is decided before a run starts, and how long it will take
    runner      runs them one after another, shows progress, keeps the results of each
    execute     one notebook in a fresh kernel, and its output without what differs between runs
    publish     outputs/published: which run may replace it, and how a run compares with it

What the cells of a notebook import:

    session     `open_run`: its settings, corpus, figures, results and model
    findings    claims about a run's numbers, shown only if the run supports them
    weights     the trained model that lessons use: named, kept, published, or trained now
    real        SmolLM2, or a small random model of its shape
    display     source code and tables in a cell's output
    words       how many generated words occur in a corpus

The notebooks as files in the repository:

    mirror      keeps their code, set-up cells and links equal to the package
    student     the edition without solutions, for a class
"""
