"""Pictures that move, one per file: each returns `steps.Steps`, made from what a run recorded."""
