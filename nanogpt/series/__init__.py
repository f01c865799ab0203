"""Run, render and publish the notebooks; also the modules that their cells import."""
