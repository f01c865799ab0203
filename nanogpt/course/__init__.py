"""What does a learner write, is it right, and what helps if it is not?

from nanogpt.course import check, hint

page        a blank as data: its solution, cases, mistakes and hints
blanks      one page for each blank
finding     run an answer on the cases, and find the mistake that explains what it shows
checking    check and hint, for notebooks
lesson      the reader's program, which all notebooks use
grade       a folder of lessons, for teachers
certificate what a finished lesson has been shown to do
"""

from .checking import check, hint

__all__ = ["check", "hint"]
