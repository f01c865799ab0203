"""What does a learner write, is it right, and what helps if it is not?

from nanogpt.course import check, hint

page        a blank as data: its solution, cases, mistakes and hints
blanks      one page for each blank; `drivers` has what several of them use
finding     run an answer on the cases, and find the mistake that explains what it shows; it uses
            observing, comparing, words, editing and limits
checking    check and hint, for notebooks
lesson      the reader's program, which all notebooks use; `program` is its text
practice    that program at work: training, generating, exporting
certificate what a finished lesson has been shown to do
grade       a folder of lessons, for teachers: submissions finds them, grade_one runs one,
            borrowed marks wrappers, grade_report is the table
missing     which cell of a notebook defines a missing name
"""

from .checking import check, hint

__all__ = ["check", "hint"]
