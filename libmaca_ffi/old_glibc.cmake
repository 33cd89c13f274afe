# MACA_GLIBC=2.28 links against that glibc's symbols, whichever this machine has, and GCC's C++ library into the
# library itself, as an older system has an older one: what the tag manylinux_2_28 of a wheel means.
set(MACA_GLIBC "" CACHE STRING "the oldest glibc to run with, such as 2.28; empty: this machine's")

if(MACA_GLIBC)
  set(OLD_GLIBC ${CMAKE_BINARY_DIR}/glibc-${MACA_GLIBC}-${CMAKE_SYSTEM_PROCESSOR})
  if(NOT EXISTS ${OLD_GLIBC}/libc.so)
    execute_process(
      COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/old_glibc.py ${MACA_GLIBC} ${CMAKE_SYSTEM_PROCESSOR} ${OLD_GLIBC} ${CMAKE_C_COMPILER}
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
  add_library(old_glibc OBJECT ${CMAKE_CURRENT_LIST_DIR}/old_glibc.c)
endif()

function(run_with_old_glibc target)
  if(MACA_GLIBC)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:old_glibc>)
    target_link_options(${target} PRIVATE -L${OLD_GLIBC} -static-libstdc++)
    # Conversions of float16, which an older libgcc_s has not. Exceptions are unwound by libgcc_s, as everybody's.
    target_link_libraries(${target} PRIVATE -l:libgcc.a)
  endif()
endfunction()

# Nothing but these names leaves a library: another's C++ library in the same process is not ours, nor ours its.
function(export_only target names)
  target_link_options(${target} PRIVATE -Wl,--version-script=${names})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${names})
endfunction()
