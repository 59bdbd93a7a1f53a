# find_package(llcoll) gives llcoll::llcoll: libllcoll.so and llcoll/llcoll.h of this package.
get_filename_component(_llcoll_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET llcoll::llcoll)
  add_library(llcoll::llcoll SHARED IMPORTED)
  set_target_properties(llcoll::llcoll PROPERTIES
    IMPORTED_LOCATION "${_llcoll_root}/lib/libllcoll.so"
    IMPORTED_SONAME "libllcoll.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_llcoll_root}/include")
endif()
unset(_llcoll_root)
