"""What do a run's results look like, on a page and in a figure?

The pages, each one file that needs no network:

    build         executed notebooks and everything beside them, as a folder of pages
    html          the cells of an executed notebook as HTML
    nbfile        notebook files: read, write, title, place in the series, figures, blanks
    reading       the glossary, the questions, the sheet to print, the one-hour path
    slides        the slides for a class
    speed         the table of speedups, on the index and in the README
    museum_page   public bugs, and the checks that find or miss each
    api_page      the public names
    address       the repository's address on GitHub, for links
    templates     HTML, CSS and JavaScript of the pages

The figures:

    plots         one function per figure: plain data in, a matplotlib Figure out
    moving        data for the figures that move; their scripts are in templates/figures
    measured      the same, for a run's measurements
    token_path    every stage of a forward pass, for the figure that follows one token
"""
