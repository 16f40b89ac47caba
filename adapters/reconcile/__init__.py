"""What one leading worker does about the difference between the registry and the engines.

reconciler        asks engines what they hold, and repairs; start here. `drift`: the differences, pure
load_retries      tries failed versions again
rebalancer        carries out the plans of `adapters.placement.planner`
evacuation        drains engines
stopped_engines   removes engines that their hosts have shut down
artifact_gc       deletes the files of versions that no engine can hold
diagnosis         what `florin doctor` reports of all this
"""
