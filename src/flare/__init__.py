"""The command line: composes scheduler, engine, runtime, server and ignition."""
