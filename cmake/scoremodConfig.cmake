# find_package(scoremod) gives scoremod::scoremod. What the library is made with is linked into it privately, so a user
# needs nothing else.
include("${CMAKE_CURRENT_LIST_DIR}/scoremodTargets.cmake")
