"""One module a command: HELP, add_arguments(parser), run(args). Heavy imports happen inside run()."""
